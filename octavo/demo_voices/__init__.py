"""Three small adapters with a voice each, trained from text written for them: three teams on one base model."""
