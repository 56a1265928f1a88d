"""What plugins implement and see: the contracts of parts and sinks, hooks, columns, table options. `router` has the
public names.
"""
