"""What a child cannot reach, whatever code runs in it.

Landlock leaves it its own folder to write in and Python to read; a filter of system calls leaves it no network, no
other process and no attribute of a file; it has no capabilities and gains none.  The kernel may grant only a part.
"""

from planner.api.jobs.sandbox.confinement import MODES, Confinement, Mode, Unconfined, announce, granted

__all__ = ["MODES", "Confinement", "Mode", "Unconfined", "announce", "granted"]
