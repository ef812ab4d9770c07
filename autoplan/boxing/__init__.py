"""Boxing (floor 1): routes between layouts of one tensor.

Where the layout that a producer leaves and the one that a consumer needs differ, the Program has a
transition. `route` gives its steps by a fixed rule; `cost` prices steps; `lower` turns them into
instructions. A transition is planned on whole layouts, never axis by axis.

To add a collective: add its step to `routes.steps_from`, its transfer to `cost.collectives`, its
local part to `runtime.kernels.collective`.
"""

from autoplan.boxing.routes import (
    RouteTable,
    Step,
    all_layouts,
    layout_numbers,
    route,
    route_table,
    steps_from,
    volume,
)

__all__ = [
    "RouteTable",
    "Step",
    "all_layouts",
    "layout_numbers",
    "route",
    "route_table",
    "steps_from",
    "volume",
]
