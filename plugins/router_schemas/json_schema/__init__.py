"""Read registered JSON Schemas with what they refer to, and merge their versions."""
