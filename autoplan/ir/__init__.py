"""The nouns (floor 0): frozen values that every other package takes and gives.

`graph` the model · `layout` placements and meshes · `machine` hardware and stack · `workload` what
is trained · `plan` decisions · `program` what is executed · `timeline` what happened · `launch` and
`record` what others configured and measured. No noun knows how it is searched, priced or run, and
none names a parallelism.
"""
