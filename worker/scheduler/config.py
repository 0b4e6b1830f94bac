"""The scheduler's settings."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Times are seconds. Raises ValueError, naming the field, where a value can never be right."""

    max_running: int  # slots
    step_tokens: int  # token budget of a step
    max_model_len: int  # tokens, output included
    vocab_size: int
    model_revision: str
    eos_token_ids: tuple[int, ...]
    max_waiting: int  # requests, over all tenants
    max_waiting_per_tenant: int
    prefix_cache: bool = True
    depth: int = 0  # steps that may be in flight when the next is planned
    watermark: float = 0.01  # share of the blocks that admission leaves available while anything runs
    tenant_share: float = 7 / 8  # of slots and of blocks that one of several tenants may have
    target_wait_s: float = 2.0  # a head that waited this may preempt, once
    starve_s: float = 10.0  # a head gains one class per this much waiting, and after it no other is admitted past it
    max_preemptions: int = 4  # of one choice; after that it is a victim only where all others have had as many
    prefill_floor: int = 32  # tokens that decodes and the target time leave to prefills in a step, where there are any
    target_itl_s: float | None = (
        math.inf
    )  # what steps that decode and prefill stay under; None: by the decodes' own time
    least_itl_s: float = 0.025  # the least that None comes to
    first_output_tokens: float = 64.0
    max_adapters: int = 0  # device slots, and so the most different adapters in a step; 0: adapters are not served
    adapter_wait_s: float = 1.0  # after which an adapter without a slot reserves one
    adapter_grace_s: float = 4.0  # after which at the latest what runs on a reserved slot is preempted
    adapter_slice_s: float = 0.5  # for which an adapter has its slot before another may reserve it

    def __post_init__(self) -> None:
        for name in (
            "max_running",
            "step_tokens",
            "max_model_len",
            "vocab_size",
            "max_waiting",
            "max_waiting_per_tenant",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in (
            "depth",
            "max_preemptions",
            "prefill_floor",
            "target_wait_s",
            "starve_s",
            "max_adapters",
            "adapter_wait_s",
            "adapter_grace_s",
            "adapter_slice_s",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.target_itl_s is not None and not self.target_itl_s > 0:
            raise ValueError("target_itl_s must be positive")
        if not 0 <= self.watermark < 1:
            raise ValueError("watermark must be at least 0 and below 1")
        if not 0 < self.tenant_share <= 1:
            raise ValueError("tenant_share must be above 0 and at most 1")
