"""Running a Program with torch, and checking what it computes (floor 4).

    Program ── interpreter ──requests──▶ transport: lockstep | distributed
                   │   ▲
       kernels ────┘   └──── feeds, random (first parameters), account (memory), progress

A rank's `interpreter` performs its stage's actions in exactly their issue order, on local tensors
and without an autograd tape: backward operators are instructions. It is a generator that yields
communication `requests`, and is driven by a transport, of which there are two. `lockstep` holds all
ranks in one process, deterministic, where a deadlock is "no rank can move" and names who waits for
what; `distributed` is torch.distributed. On CPUs both define a reduction as the sum in group order,
so they give the same bits.

An interpreter tells in advance what it will receive next from each peer, so that a message can come
while the rank computes: gloo moves nothing before the receiver has asked for it.

`session` is a rank's whole run: first parameters as a function of seed and name, step after step,
what is recorded. `execute` runs all ranks: here, in a `pool` of forked workers, or in a world that
torchrun made. A `worker` that dies, stops or hangs is found by `supervise`, which reads where each
rank stands from its `progress` page, names rank and instruction and leaves no process behind.

Between steps a rank's state is its pieces of parameters, master copies, optimizer state and loss
scale. `checkpoint` saves and loads them through torch.distributed.checkpoint, by their place in the
whole tensors, so a run goes on under any other plan of the same model and optimizer: its step
counter drives data, dropout and bias correction.

`account` counts live memory from the real tensors, independently of the account that the simulator
makes from the Program. `reference` is the unsharded model by autograd; `verify` compares a run with
it, step by step, each from the run's own parameters.
"""
