"""The machines of a cluster: its address, certificates, and the programs that live on them.

In: what the verb `cluster` does.
Not in: the protocol: that is the room `cluster`.
"""
