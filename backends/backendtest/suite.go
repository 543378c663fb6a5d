package backendtest

// suite is every test there is.
var suite = []conformance{
	{name: "FenceAfterCounterDeleted", run: testFenceAfterCounterDeleted, needs: needs[CounterDeleter]("CounterDeleter"), alone: true},
	{name: "HeartbeatCost", run: testHeartbeatCost, needs: needs[CommandCounter]("CommandCounter"), alone: true},
	{name: "Restart", run: testRestart, needs: needs[Restarter]("Restarter"), alone: true},

	{name: "LeaseExpires", run: testLeaseExpires},
	{name: "HeartbeatKeepsLease", run: testHeartbeatKeepsLease},
	{name: "DeadLeaseIsFinal", run: testDeadLeaseIsFinal},
	{name: "DeadWaiterSkipped", run: testDeadWaiterSkipped},
	{name: "DeadNotListed", run: testDeadNotListed},
	{name: "FencesGrow", run: testFencesGrow},
	{name: "ForceDead", run: testForceDead},
	{name: "LostWakeUps", run: testLostWakeUps, needs: needs[WakeupDropper]("WakeupDropper")},

	{name: "Exclusive", run: testExclusive},
	{name: "Shared", run: testShared},
	{name: "RetryFindsHold", run: testRetryFindsHold},
	{name: "RetryKeepsPlace", run: testRetryKeepsPlace},
	{name: "ReleaseOnlyOwn", run: testReleaseOnlyOwn},
	{name: "ReleaseOfWaiter", run: testReleaseOfWaiter},
	{name: "Downgrade", run: testDowngrade},
	{name: "DowngradeOnlyOwn", run: testDowngradeOnlyOwn},
	{name: "CloseReleasesAll", run: testCloseReleasesAll},

	{name: "FIFO", run: testFIFO},
	{name: "ReadersTogether", run: testReadersTogether},
	{name: "WriterBlocksLaterReaders", run: testWriterBlocksLaterReaders},
	{name: "WriterNotStarved", run: testWriterNotStarved},
	{name: "Cancel", run: testCancel},
	{name: "Timeout", run: testTimeout},
	{name: "WakeUp", run: testWakeUp},

	{name: "ForceAtOnce", run: testForceAtOnce},
	{name: "ForceGraceUsed", run: testForceGraceUsed},
	{name: "ForceGraceOver", run: testForceGraceOver},
	{name: "ForceWaiter", run: testForceWaiter},

	{name: "Get", run: testGet},
	{name: "List", run: testList},
	{name: "OddNames", run: testOddNames},

	{name: "AcquireReplyLost", run: testAcquireReplyLost, needs: needs[Faulter]("Faulter")},
	{name: "AcquireReplyLostGivenUp", run: testAcquireReplyLostGivenUp, needs: needs[Faulter]("Faulter")},
	{name: "PlaceReplyLost", run: testPlaceReplyLost, needs: needs[Faulter]("Faulter")},
	{name: "ReleaseReplyLost", run: testReleaseReplyLost, needs: needs[Faulter]("Faulter")},
	{name: "SilenceIsNotLoss", run: testSilenceIsNotLoss, needs: needs[Faulter]("Faulter")},

	{name: "ExclusionUnderLoad", run: testExclusionUnderLoad},
	{name: "SharingUnderLoad", run: testSharingUnderLoad},
	{name: "CancelRaces", run: testCancelRaces},
	{name: "Random", run: testRandom},
	{name: "ManyHolds", run: testManyHolds},
}
