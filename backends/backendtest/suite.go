package backendtest

// suite is every test there is.
var suite = []conformance{
	{name: "Exclusive", run: testExclusive},
	{name: "Shared", run: testShared},
	{name: "RetryFindsHold", run: testRetryFindsHold},
	{name: "RetryKeepsPlace", run: testRetryKeepsPlace},
	{name: "ReleaseOnlyOwn", run: testReleaseOnlyOwn},
	{name: "ReleaseOfWaiter", run: testReleaseOfWaiter},
	{name: "Downgrade", run: testDowngrade},
	{name: "DowngradeOnlyOwn", run: testDowngradeOnlyOwn},

	{name: "FIFO", run: testFIFO},
	{name: "ReadersTogether", run: testReadersTogether},
	{name: "WriterBlocksLaterReaders", run: testWriterBlocksLaterReaders},
	{name: "WriterNotStarved", run: testWriterNotStarved},
	{name: "Cancel", run: testCancel},
	{name: "Timeout", run: testTimeout},
	{name: "WakeUp", run: testWakeUp},

	{name: "FencesGrow", run: testFencesGrow},
	{name: "FenceAfterCounterDeleted", run: testFenceAfterCounterDeleted, needs: needs[CounterDeleter]("CounterDeleter"), alone: true},

	{name: "LeaseExpires", run: testLeaseExpires},
	{name: "HeartbeatKeepsLease", run: testHeartbeatKeepsLease},
	{name: "DeadLeaseIsFinal", run: testDeadLeaseIsFinal},
	{name: "DeadWaiterSkipped", run: testDeadWaiterSkipped},
	{name: "CloseReleasesAll", run: testCloseReleasesAll},
}
