"""Every scenario by its name."""

from __future__ import annotations

from tests.expectations import configurations, decoding, evolving, keeping, routing

MODULES = (configurations, decoding, evolving, keeping, routing)
SCENARIOS = {scenario.name: scenario for module in MODULES for scenario in module.SCENARIOS}
