"""What the scheduler keeps of requests and of their choices while they live. Imports no torch.

A sequence is one choice: `tokens` are the prompt and the outputs known so far. A position is *scheduled* when a plan computes its KV and
*computed* when that plan has retired; a sampled token whose step has not retired is *unknown*. What is to be computed is always
`known + unknown - scheduled`, whether that is a prompt, a piece of one, a replay or one decode step.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from shared.hashing import BLOCK_SIZE, Chain, next_hash
from shared.types import Choice, TokenRequest
from worker.kvcache.pool import Holder
from worker.kvcache.tables import BlockTable
from worker.plan import SlotStart


@dataclass(kw_only=True, slots=True, eq=False)
class AdapterSlot:
    """A device slot. `ready` since the time `since`, after that the adapter has been there. `until` is the latest plan that names it.

    `reserved` is who gets it when nobody uses it any more, asked for at `reserved_at`; till then none of its own is admitted.
    """

    number: int
    adapter: "Adapter | None" = None
    ready: bool = False
    since: float = 0.0
    until: int = -1
    used: int = 0  # grows from one use to the next, over all slots
    offered: bool = False  # its sequences have been offered places since it is ready
    reserved: "Adapter | None" = None
    reserved_at: float = 0.0


@dataclass(kw_only=True, slots=True, eq=False)
class Adapter:
    """An adapter's version, while any sequence of it lives or it is in a slot. `residents` are its sequences that have a sequence slot."""

    digest: bytes
    live: int = 0
    residents: int = 0
    slot: AdapterSlot | None = None  # also while it is being loaded there
    pinned: bool = False  # nobody else gets its slot
    forgotten: bool = False  # no name means it: its slot is cleared after its last sequence
    idle_since: float = 0.0  # when the last of its sequences ended


@dataclass(kw_only=True, slots=True, eq=False)
class Share:
    """What one adapter, or the base model, has had of its tenant's service, in virtual tokens."""

    served: float = 0.0
    live: int = 0


@dataclass(kw_only=True, slots=True, eq=False)
class Account:
    """A tenant's standing. `served` is its virtual tokens divided by its weight: the larger, the more it has had."""

    tenant_id: str
    weight: float
    served: float = 0.0
    holder: Holder = field(default_factory=Holder)  # its KV blocks
    slots: int = 0
    peak: int = 0  # the most slots that it has had lately, and when (seconds)
    peak_at: float = 0.0
    left_at: float = 0.0  # when its last sequence ended
    live: int = 0  # sequences that have not ended
    backlog_tokens: float = 0.0  # virtual tokens that its waiting requests are expected to cost
    shares: dict[bytes, Share] = field(default_factory=dict)  # by adapter digest, of those with live sequences


@dataclass(kw_only=True, slots=True, eq=False)
class RequestState:
    """A request. `order` counts arrivals; `deadline` is a time of the caller's clock, in seconds."""

    stream: int
    spec: TokenRequest
    order: int
    deadline: float | None
    account: Account
    chain: Chain
    stop_tokens: frozenset[int]
    share: Share = field(default_factory=Share)
    adapter: Adapter | None = None
    live: int = 0  # choices that have not ended
    has_preempted: bool = False
    rows_told: int = 0  # of the prompt's log-probabilities: those of positions 1 to this

    @property
    def rows_missing(self) -> int:
        """Rows of the prompt's log-probabilities that are wanted and not told yet. A resumed request got them from whoever began it."""
        if self.spec.sampling.prompt_logprobs is None or self.spec.resumed:
            return 0
        return len(self.spec.prompt_tokens) - 1 - self.rows_told

    @property
    def priority(self) -> int:
        """Its class; 0 is the highest."""
        return self.spec.tenant.top_class

    def charge(self, virtual_tokens: float) -> None:
        """Add to what its tenant has had, and its adapter among the tenant's."""
        self.account.served += virtual_tokens / self.account.weight
        self.share.served += virtual_tokens


class Phase(Enum):
    """Where a sequence stands."""

    NEW = auto()  # not queued yet, or taken from its place and not queued again yet
    WAITING = auto()
    FORKING = auto()  # has a slot, and waits for its leader's prefill
    RUNNING = auto()
    ENDED = auto()


@dataclass(kw_only=True, slots=True, eq=False)
class SequenceState:
    """One choice. `limit` is the most tokens, prompt included, that it can ever have."""

    request: RequestState
    choice: Choice
    tokens: list[int]
    limit: int
    hashes: list[bytes] = field(default_factory=list)  # of the leading full blocks, as far as anyone asked
    phase: Phase = Phase.NEW
    incarnation: int = 0  # grows when slot and blocks are lost, so that steps in flight are told from later ones
    slot: int = -1
    started: bool = False  # a plan has given the slot its SlotStart
    table: BlockTable | None = None
    computed: int = 0
    scheduled: int = 0
    unknown: int = 0
    last_step: int = -1  # the latest plan that names its slot or its blocks
    cached_tokens: int | None = None  # prompt tokens hit at the first admission
    preemptions: int = 0
    leader: "SequenceState | None" = None  # while FORKING
    children: "list[SequenceState]" = field(default_factory=list)  # those FORKING from it

    @property
    def prompt_len(self) -> int:
        """Tokens of the original prompt."""
        return len(self.request.spec.prompt_tokens)

    @property
    def outputs(self) -> int:
        """Known tokens from the original prompt's end on."""
        return len(self.tokens) - self.prompt_len

    @property
    def pending(self) -> int:
        """Positions to compute and not yet scheduled. The token at `limit - 1` is never an input, so that its KV is never wanted."""
        return min(len(self.tokens) + self.unknown, self.limit - 1) - self.scheduled

    @property
    def age_key(self) -> tuple[int, int]:
        """Larger is newer."""
        return (self.request.order, self.choice.index)

    @property
    def readable(self) -> int:
        """Leading full blocks that may be taken from the cache. What predicts a token whose log-probability is missing must be computed."""
        known = self.request.rows_told if self.request.rows_missing else len(self.tokens)
        return known // BLOCK_SIZE

    def hash_blocks(self, count: int) -> list[bytes]:
        """The hashes of the first `count` blocks, which must be full of known tokens."""
        while len(self.hashes) < count:
            index, chain = len(self.hashes), self.request.chain
            parent = chain.parent(index, self.hashes[-1] if self.hashes else chain.seed)
            self.hashes.append(next_hash(parent, self.tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]))
        return self.hashes

    @property
    def adapter_slot(self) -> int:
        """Where its adapter is, while the sequence has a slot of its own; -1 for the base model."""
        adapter = self.request.adapter
        if adapter is None:
            return -1
        assert adapter.slot is not None
        return adapter.slot.number

    def slot_start(self) -> SlotStart:
        """What the runner must know of it."""
        return SlotStart(
            slot=self.slot,
            tokens=tuple(self.tokens),
            prompt_len=self.prompt_len,
            sampling=self.request.spec.sampling,
            choice_index=self.choice.index,
        )
