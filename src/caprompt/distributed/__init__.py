"""Work on several processes and machines: leases on shared storage, Ray, Slurm, and ranks of `torch.distributed`.

No other package imports ray, submitit or torch.distributed.
"""

from __future__ import annotations
