"""The agent of a pod: its connection to the operator, the rendezvous handler of torchrun, and the pod's own workers.

`machine` decides (with `state`, `events`, `rules` and `stages`: values in, values out, no I/O and no clock). `executor`
acts. `handler` answers torch. No decision about a world belongs anywhere else.
"""
