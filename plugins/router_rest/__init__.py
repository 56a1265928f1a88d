<<<<<<< HEAD
"""Post events to HTTP APIs: calls, their pace, and what became of them."""
=======
"""Post events to HTTP APIs: bodies, calls, one limit for all tasks, receipts."""
>>>>>>> 7c26b33be36e4b16a077302a0ce30de17a22d868
