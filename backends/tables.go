package backends

// Tables describe a store that keeps its locks in tables, which somebody may have to
// make by hand.
type Tables struct {
	Store      string   // its name for people to type
	About      string   // the name, with more words
	Client     string   // a command that takes SQL, for examples
	Strategies []string // the ways to keep locks; the first is the usual one
	Prefix     string   // the usual beginning of the names of tables
	// Schema is the SQL that makes the tables. The error is lock.ErrInvalid.
	Schema func(strategy, prefix string) (string, error)
}

// WithTables are the stores that have tables; at least one.
func WithTables() []Tables {
	var all []Tables
	for _, k := range kinds {
		if k.tables != nil {
			all = append(all, *k.tables)
		}
	}
	return all
}
