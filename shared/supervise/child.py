"""What a supervised child runs: the module it is told to, and a guard that ends it when its supervisor is gone.

    python -P -m shared.supervise.child SECONDS MODULE ARGUMENTS...

Standard input is a pipe of which the supervisor holds the other end and into which it never writes. It ends when the
supervisor does, however that ended: the child then drains as on SIGTERM, and is gone after SECONDS.
"""

import os
import runpy
import signal
import sys
import threading
import time


def _guard(seconds: float) -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(1)


def main() -> None:
    """Runs the module under its own name, with its own arguments."""
    seconds, module = float(sys.argv[1]), sys.argv[2]
    threading.Thread(target=_guard, args=(seconds,), daemon=True, name="supervisor-guard").start()
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
