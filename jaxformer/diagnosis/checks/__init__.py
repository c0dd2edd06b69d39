"""The checks of a run: functions from its evidence to a finding.

They raise :class:`jaxformer.diagnosis.evidence.UnseenError` if their evidence is
missing.
"""
