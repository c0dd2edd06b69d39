"""The checks of a run: functions from its evidence to a finding."""
