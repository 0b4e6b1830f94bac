"""The engine: steps over a scheduler and an executor, and the thread on which they run."""

from worker.engine.async_engine import AsyncEngine, Sink
from worker.engine.engine import Engine, StepFacts
from worker.engine.report import Report

__all__ = ["AsyncEngine", "Engine", "Report", "Sink", "StepFacts"]
