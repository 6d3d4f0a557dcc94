"""The doctor: what each node of a cluster is like, and what of it would end or slow down a run.

Facts are gathered on the nodes by thin code (``look``), and judged on the driver by pure functions (``judge``).
"""
