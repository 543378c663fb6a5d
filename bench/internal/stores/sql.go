package stores

// Names of the subjects that all SQL stores have.
const (
	TwoUpdates = "2 × autocommit UPDATE"
	rowLock    = "transaction with SELECT … FOR UPDATE"
)

// table has a row for each caller and subject.
const table = "bench_peers"
