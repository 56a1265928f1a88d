"""The limits of an API, kept by all tasks of a job together: tokens, one per call, leased by the driver.

Driver: server.py talks to tasks, coordinator.py decides who gets how many tokens, by the sliding windows of the stated
limits (sliding_window.py), and by backpressure.py: the adaptive rate that follows refusals, the concurrency limit, the
circuit breaker and the retry budget.
Tasks: client.py holds the tokens of a task, waits for one before each attempt, and reports how the attempt ended.
protocol.py holds their messages, and the encryption that keeps these from others.
"""
