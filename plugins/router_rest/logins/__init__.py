"""The login of calls: what people configure (auth.py), what the driver makes of it (credentials.py), what a
task adds to its requests (task_login.py), and signatures (signing.py).

Secrets stay on the driver and in the memory of tasks: they are in no pickle, file or log.
"""
