"""Validation (floor 6): predictions beside what was measured, by others and here.

    express     a recorded run -> model, machine, stack, workload and pins, or why not
    devices     the name of a device, as printed -> its hardware profile
    evaluate    that, priced by the ordinary path: Plan, Program, simulation
    standing    which runs are judged, together with which, and which apart
    score       errors, fits, order, regret, coverage;  statistics: how these are counted
    knobs       which constants may be fitted, how far, and where in a profile they are
    samples     runs lowered once: step times, peaks of memory, and whether they fitted
    calibrate   constants that explain samples best, and which of them these can tell
    folds       how far off runs are that nothing was fitted to: models, sources, software
    campaign    plans sampled, predicted, then run here
    measure/    a machine measured -> a hardware profile

Nothing here has a formula of a cost: a run is judged by what `simulate` says of it, and fitted by
simulating it again with other constants. What a run leaves out is the stack's default; what has no
words yet is listed with the reason. To add software: a file in `hardware_profiles/stacks/` with the
signs by which its runs are known (`recorded_as`); to add a kind of device: a hardware profile.
"""
