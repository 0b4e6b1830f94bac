"""A supervised child that does what its first argument says; its second is the port that it says it got."""

import json
import signal
import sys
import threading


def say(line: str) -> None:
    sys.stderr.write(line + "\n")


def tell(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main(mode: str, port: str) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: mode == "stubborn" or stop.set())
    if mode == "fails":
        say("loading")
        say("no such model: nothing")
        return 3
    if mode == "talkative":
        say("x" * (1 << 20))
        sys.stdout.write("not an event\n")
    tell(event="listening", address=f"127.0.0.1:{port if port != '0' else 45001}")
    tell(event="ready")
    while not stop.wait(0.01):
        pass
    say("drained")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
