package backendtest

import "slices"

// suite is every test there is.
var suite = slices.Concat(usual, deaf(usual))

// usual is the suite but for what is run once more without pushes.
var usual = []conformance{
	{name: "FenceAfterCounterDeleted", run: testFenceAfterCounterDeleted, needs: needs[CounterDeleter]("CounterDeleter"), alone: true},
	{name: "HeartbeatCost", run: testHeartbeatCost, needs: needs[CommandCounter]("CommandCounter"), alone: true},
	{name: "Restart", run: testRestart, needs: needs[Restarter]("Restarter"), alone: true},
	{name: "FailOver", run: testFailOver, needs: needs[Failoverer]("Failoverer"), alone: true},
	{name: "FailOverToEmpty", run: testFailOverToEmpty, needs: needs[Failoverer]("Failoverer"), alone: true},

	{name: "ArbiterSilentStore", run: testArbiterSilentStore, needs: needs[Freezer]("Freezer"), alone: true},

	{name: "MassRestart", run: testMassRestart, needs: needs[Restarter]("Restarter"), alone: true},
	{name: "MassClosed", run: testMassClosed, alone: true},
	{name: "MassExpires", run: testMassExpires, alone: true},
	{name: "MassRefused", run: testMassRefused, needs: limitsHolds, alone: true},
	{name: "CrowdOnOne", run: testCrowdOnOne, shares: true, alone: true},
	{name: "CrowdGranted", run: testCrowdGranted, shares: true, alone: true},

	{name: "EveryTTL", run: testEveryTTL},
	{name: "LeaseExpires", run: testLeaseExpires},
	{name: "HeartbeatKeepsLease", run: testHeartbeatKeepsLease},
	{name: "DeadLeaseIsFinal", run: testDeadLeaseIsFinal},
	{name: "DeadWaiterSkipped", run: testDeadWaiterSkipped},
	{name: "DeadNotListed", run: testDeadNotListed},
	{name: "FencesGrow", run: testFencesGrow},
	{name: "ForceDead", run: testForceDead},
	{name: "LostWakeUps", run: testLostWakeUps, needs: needs[WakeupDropper]("WakeupDropper")},

	{name: "FirstRequestOfDead", run: testFirstRequestOfDead},
	{name: "UnnoticedEnd", run: testUnnoticedEnd},
	{name: "DeadWhateverClocksDo", run: testDeadWhateverClocksDo, needs: needs[ClockShifter]("ClockShifter")},

	{name: "ClockIsSet", run: testClockIsSet, needs: needs[settable]("ClockShifter and Restarter")},

	{name: "ServerLacksGrant", run: testServerLacksGrant, needs: needs[Switcher]("Switcher")},
	{name: "SlowServerLacksGrant", run: testSlowServerLacksGrant, needs: needs[slowSwitcher]("Switcher and Slower")},
	{name: "ServerLacksGrantInSilence", run: testServerLacksGrantInSilence, needs: needs[silentSwitcher]("Switcher and Faulter")},
	{name: "ServerLacksRelease", run: testServerLacksRelease, needs: needs[Switcher]("Switcher")},
	{name: "OldServerLacksGrant", run: testOldServerLacksGrant, needs: needs[Switcher]("Switcher")},
	{name: "OldServerLacksRelease", run: testOldServerLacksRelease, needs: needs[Switcher]("Switcher")},

	{name: "HeartbeatTells", run: testHeartbeatTells, needs: needs[WakeupDropper]("WakeupDropper"), deaf: true},
	{name: "ForcedWaiterIsTold", run: testForcedWaiterIsTold, needs: needs[WakeupDropper]("WakeupDropper"), deaf: true},

	{name: "Exclusive", run: testExclusive},
	{name: "Shared", run: testShared, shares: true},
	{name: "RetryFindsHold", run: testRetryFindsHold},
	{name: "ReleaseOnlyOwn", run: testReleaseOnlyOwn},
	{name: "Downgrade", run: testDowngrade, shares: true, orders: true, downgrades: true},
	{name: "DowngradeOnlyOwn", run: testDowngradeOnlyOwn, downgrades: true},
	{name: "CloseReleasesAll", run: testCloseReleasesAll},

	{name: "Unsupported", run: testUnsupported},

	{name: "FIFO", run: testFIFO, orders: true},
	{name: "ReadersTogether", run: testReadersTogether, shares: true, orders: true},
	{name: "WriterBlocksLaterReaders", run: testWriterBlocksLaterReaders, shares: true, orders: true},
	{name: "WriterNotStarved", run: testWriterNotStarved, shares: true},
	{name: "Cancel", run: testCancel},
	{name: "Timeout", run: testTimeout},
	{name: "WakeUp", run: testWakeUp},

	{name: "ForceAtOnce", run: testForceAtOnce},
	{name: "ForceGraceUsed", run: testForceGraceUsed},
	{name: "ForceGraceOver", run: testForceGraceOver},
	{name: "ForceWaiter", run: testForceWaiter},

	{name: "Permits", run: testPermits, permits: true},
	{name: "PermitsInOrder", run: testPermitsInOrder, permits: true},
	{name: "PermitsForced", run: testPermitsForced, permits: true},
	{name: "PermitsOfTheDead", run: testPermitsOfTheDead, permits: true},
	{name: "PermitReplyLost", run: testPermitReplyLost, needs: needs[Faulter]("Faulter"), permits: true},
	{name: "PermitsUnderLoad", run: testPermitsUnderLoad, permits: true},

	{name: "MinHold", run: testMinHold, keeps: true},
	{name: "MinHoldOver", run: testMinHoldOver, keeps: true},
	{name: "MinHoldOfTheDead", run: testMinHoldOfTheDead, keeps: true},
	{name: "MinHoldForced", run: testMinHoldForced, keeps: true},
	{name: "MinHoldShared", run: testMinHoldShared, shares: true, keeps: true},
	{name: "MinHoldDowngraded", run: testMinHoldDowngraded, shares: true, downgrades: true, keeps: true},
	{name: "MinHoldOfPermit", run: testMinHoldOfPermit, permits: true, keeps: true},
	{name: "MinHoldReplyLost", run: testMinHoldReplyLost, needs: needs[Faulter]("Faulter"), keeps: true},
	{name: "MinHoldUnderLoad", run: testMinHoldUnderLoad, keeps: true},

	{name: "Detach", run: testDetach, detaches: true},
	{name: "DetachTakenOver", run: testDetachTakenOver, detaches: true},
	{name: "DetachOver", run: testDetachOver, detaches: true},
	{name: "DetachOfTheDead", run: testDetachOfTheDead, detaches: true},
	{name: "DetachForced", run: testDetachForced, detaches: true},
	{name: "DetachWhateverClocksDo", run: testDetachWhateverClocksDo, needs: needs[ClockShifter]("ClockShifter"), shares: true, detaches: true},
	{name: "DetachShared", run: testDetachShared, shares: true, detaches: true},
	{name: "DetachPermit", run: testDetachPermit, permits: true, detaches: true},
	{name: "DetachReplyLost", run: testDetachReplyLost, needs: needs[Faulter]("Faulter"), detaches: true},

	{name: "ForceAgain", run: testForceAgain},
	{name: "ForceInSilence", run: testForceInSilence, needs: needs[Faulter]("Faulter")},
	{name: "ForcerGone", run: testForcerGone, needs: needs[Faulter]("Faulter")},
	{name: "ForceInLastSilence", run: testForceInLastSilence, needs: needs[Faulter]("Faulter")},

	{name: "Get", run: testGet},
	{name: "List", run: testList},
	{name: "OddNames", run: testOddNames},
	{name: "Spaces", run: testSpaces},

	{name: "RecordVersions", run: testRecordVersions},
	{name: "RecordRace", run: testRecordRace},
	{name: "RecordExpires", run: testRecordExpires},
	{name: "RecordValues", run: testRecordValues},
	{name: "RecordPages", run: testRecordPages},
	{name: "RecordBesideLock", run: testRecordBesideLock},
	{name: "RecordReplyLost", run: testRecordReplyLost, needs: needs[Faulter]("Faulter")},

	{name: "AcquireReplyLost", run: testAcquireReplyLost, needs: needs[Faulter]("Faulter")},
	{name: "AcquireReplyLostGivenUp", run: testAcquireReplyLostGivenUp, needs: needs[Faulter]("Faulter")},
	{name: "ReleaseOfWaiter", run: testReleaseOfWaiter, needs: needs[Faulter]("Faulter")},
	{name: "PlaceReplyLost", run: testPlaceReplyLost, needs: needs[Faulter]("Faulter"), orders: true},
	{name: "ReleaseReplyLost", run: testReleaseReplyLost, needs: needs[Faulter]("Faulter")},
	{name: "SilenceIsNotLoss", run: testSilenceIsNotLoss, needs: needs[Faulter]("Faulter")},

	{name: "ArbiterHandsOn", run: testArbiterHandsOn},
	{name: "ArbiterOrder", run: testArbiterOrder, orders: true},
	{name: "ArbiterReaders", run: testArbiterReaders, shares: true, orders: true},
	{name: "ArbiterParked", run: testArbiterParked},
	{name: "ArbiterPermits", run: testArbiterPermits, permits: true},
	{name: "ArbiterMinHold", run: testArbiterMinHold, keeps: true},
	{name: "ArbiterDetach", run: testArbiterDetach, detaches: true},
	{name: "ArbiterUnheard", run: testArbiterUnheard, needs: needs[WakeupDropper]("WakeupDropper")},
	{name: "ArbiterUnheardInUse", run: testArbiterUnheardInUse, needs: needs[WakeupDropper]("WakeupDropper"), deaf: true},
	{name: "ArbiterCutOff", run: testArbiterCutOff, needs: needs[Faulter]("Faulter")},
	{name: "ArbiterStarvesNobody", run: testArbiterStarvesNobody},
	{name: "ArbiterForced", run: testArbiterForced},
	{name: "ArbiterShown", run: testArbiterShown},
	{name: "ArbiterDies", run: testArbiterDies},
	{name: "ArbiterServerLacksParked", run: testArbiterServerLacksParked, needs: needs[Switcher]("Switcher")},

	{name: "Deadlock", run: testDeadlock},
	{name: "DeadlockOfPermits", run: testDeadlockOfPermits, permits: true},
	{name: "ArbiterDeadlock", run: testArbiterDeadlock},

	{name: "ExclusionUnderLoad", run: testExclusionUnderLoad},
	{name: "SharingUnderLoad", run: testSharingUnderLoad, shares: true},
	{name: "CancelRaces", run: testCancelRaces},
	{name: "Model", run: testModel, orders: true},
	{name: "Random", run: testRandom},
	{name: "ManyHolds", run: testManyHolds},
}
