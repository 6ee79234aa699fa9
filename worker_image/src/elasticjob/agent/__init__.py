"""The agent of a pod: its connection to the operator, the rendezvous handler of torchrun, and the pod's own workers.

`machine` decides, with `state`, `events`, `rules` and `stages`: values in, values out, no I/O and no clock. `executor`
carries the decisions out, and `handler` is torch's rendezvous interface. Decide about a world nowhere else.
"""
