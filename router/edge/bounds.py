"""What both edges check alike: the turns of a chat, and how many tokens they read at all.

The bounds on counts keep one request from holding up the event loop; whether a prompt fits its model is for the router's inside.
"""

from collections.abc import Sized

from router.request import ChatPrompt, Message
from shared.errors import InvalidRequest, RequestTooLarge

MAX_TURNS = 4_096
MAX_PROMPT_TOKENS = 1 << 20
MAX_DETOKENIZED = 1 << 17

_ROLES = ("assistant", "developer", "system", "tool", "user")


def check_count(turns: Sized, param: str) -> None:
    """Raises InvalidRequest naming `param` where there are too many."""
    if len(turns) > MAX_TURNS:
        raise InvalidRequest(f"{param} takes at most {MAX_TURNS} messages", param=param)


def turn(role: str, content: str, name: str, param: str) -> Message:
    """One turn. A developer's message is given to the model as the system's. Raises InvalidRequest naming a field of `param`."""
    if role not in _ROLES:
        raise InvalidRequest(f"{param}.role must be one of {', '.join(_ROLES)}", param=f"{param}.role")
    return Message(role="system" if role == "developer" else role, content=content, name=name)


def checked_chat(chat: ChatPrompt, param: str) -> ChatPrompt:
    """`chat`, unless it is empty. Raises InvalidRequest naming `param`."""
    if not chat.messages:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    return chat


def check_tokens(tokens: Sized, param: str, most: int) -> None:
    """Raises RequestTooLarge naming `param` where there are more than `most`."""
    if len(tokens) > most:
        raise RequestTooLarge(f"{param} has {len(tokens)} tokens, more than the {most} that are read", param=param)
