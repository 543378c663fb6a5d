// Package config fills command-line flags from the environment and from a YAML
// file, so that each setting has one name in three places:
//
//	--max-holds 100              on the command line
//	LOCKSIDECAR_MAX_HOLDS=100    in the environment
//	max-holds: 100               in the file
//
// The command line wins over the environment, the environment over the file,
// and the file over the default.
package config

import "strings"

// EnvPrefix begins the name of every variable.
const EnvPrefix = "LOCKSIDECAR_"

// EnvName is the variable of a flag: "max-holds" is LOCKSIDECAR_MAX_HOLDS.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
