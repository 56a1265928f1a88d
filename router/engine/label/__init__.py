"""Which rows go where: routes, and what Arrow evaluates of their expressions."""
