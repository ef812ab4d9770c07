"""Measuring a machine (part of floor 6): this one, or a cluster by its files -> a hardware profile.

    measure_machine    torch on this machine, every rank busy
      programs    what is measured: steps of growing decoders, collectives, transfers
      tasks       a worker performs a Program and stops the time (the only module that computes)
      compute     instructions with their seconds -> the constants of a device
      crowd       how much busy cores slow each other
      links       communication with its seconds -> latency and bandwidth of a level
      fit         a line of least absolute error
      machine     one after the other, and the profile
    profile_cluster    files about a machine that is not here
      levels      `nvidia-smi topo -m` -> levels inside a node
      cluster     logs of nccl-tests -> latency and rate of the levels that they cross
    assemble      what was measured in the place of what a profile said
    rounding      measured numbers with few digits
    documents     both as JSON

A profile is what the pricer reads, so nothing here has a formula of its own: constants are those
with which the pricer's formulas come nearest to what was measured. Three rules keep that honest.
Instructions are timed where they stand in real steps, by the interpreter that will run them, on all
ranks at once; where ranks are cores, on one alone as well, and collectives between computing (back
to back they take a tenth of what they take in a step). What counts is a part of a step (matrix
products, attention, streaming), not one operator: errors of many operators that cancel in every
step do no harm, and shares say how much the others do. And every number carries its evidence, with
the factor by which the parts that it governs are off: so predictions know how sure they are.

A constant that a formula of `cost` gains is fitted too once `compute` names it. What a profile has
no word for (a family slower than its bytes, an operation with an algorithm of its own) stands in
the document beside it: every operator, every call, and what either fit says of it.

Laws, tested: fits find what generated a table, under noise and outliers; a machine that prices its
own readings is found again; a profile survives its file; a topology's levels are those of the
profiles that people wrote by hand.
"""

from autoplan.validate.measure.cluster import Cluster, profile_cluster
from autoplan.validate.measure.documents import cluster_document, measured_document
from autoplan.validate.measure.machine import Effort, Measured, measure_machine

__all__ = [
    "Cluster",
    "Effort",
    "Measured",
    "cluster_document",
    "measure_machine",
    "measured_document",
    "profile_cluster",
]
