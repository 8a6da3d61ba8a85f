"""Attack what runs: lower bounds on epsilon from running the code, not from its description."""

from verax.auditing.canaries import CanaryAudit, audit_canaries
from verax.auditing.transcript import SamplerAudit, audit_sampler

__all__ = ["CanaryAudit", "SamplerAudit", "audit_canaries", "audit_sampler"]
