"""The long form of what is shown in short elsewhere: workers of the demo model come and go, and no stream shows it; routers too."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.accept import fleet_chaos

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def test_router_cases_13_29_30_kills_stops_and_rolling_restarts_alter_no_stream_and_leave_nothing(
    demo_model: Path, tmp_path: Path
) -> None:
    told = asyncio.run(fleet_chaos.measure(demo_model, tmp_path, fleet_chaos.PLAN))
    print(json.dumps(told))
    assert told["passed"], told
    assert told["asked_again"] > 0, "no router had a stream when it was killed"
    assert told["answers_compared"] >= fleet_chaos.STREAMS
