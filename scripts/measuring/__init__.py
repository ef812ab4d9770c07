"""What the measuring scripts share: workloads, running plans in turn, network namespaces, tables.

    workloads    what is run: small models, and pins by kind of plan
    predicted    cases -> predictions, and the files that hold them
    parts        where a step's time goes
    here         runs plans in turn through the runtime's pool
    cores        who keeps the cores busy
    namespaces   two nodes of this machine, joined by a link of known bandwidth
    visits       what a plan's visits measured
    runs         measured rows as recorded runs
    fitted       the machine that explains measured rows best
    scores       predictions against measurements

The shuffled rounds and what is made of disturbed ones are `autoplan.validate.campaign`.
"""
