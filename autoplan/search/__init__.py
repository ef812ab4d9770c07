"""Search (floor 5): the fastest plan that fits.

    outer       the whole: bounds, settling, exact evaluation of the best
    outline     which candidates, in which order
    candidates  depth, meshes, order of axes, micro-batches
    freedom     what pins leave open
    engine      one candidate: price of memory, cut into stages, Plan
    settle      the best decisions of a candidate, by branch and bound; effort: how much of that
    hull        the best weights and bound; relaxed: a step as linear rows
    fronts      all decisions between a bound and a step; pareto: what is not dominated
    chain       blocks joined at one boundary, weighed
    step        what decisions come to as a step
    partition   blocks to stages, recomputed layers
    space       the variables of a block
    build       what every decision costs, as factors; setting: what they are built for
    tables      factors with options, and their exact minimum
    storage     stored layouts of parameters
    prices      operators by local size, transitions by layout pair
    eliminate   exact minimisation
    ideal       a bound on every plan
    ranking     which plans are the same to people
    baselines   plain choices beside the winner
    nearest     why nothing fits, and which changes would help

Nothing here names a parallelism: the inner problem chooses a split per layer operator and a home
per hub, and `describe` reads familiar names off the result.
"""

from autoplan.search.outer import search
from autoplan.search.result import Ranked, Request, SearchResult

__all__ = ["Ranked", "Request", "SearchResult", "search"]
