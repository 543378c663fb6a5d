// Package locksidecarv1 is the local API: Go code made from locksidecar.proto,
// and the same for HTTP as an OpenAPI document.
package locksidecarv1

import _ "embed"

// OpenAPI is the HTTP side of the API as an OpenAPI 3.1 document, made from the
// proto file.
//
//go:embed openapi.json
var OpenAPI []byte
