package locksidecarv1

import (
	"testing"

	"google.golang.org/protobuf/types/descriptorpb"
)

// Stubs of other languages stand under names that are those of the language.
func TestNamespaces(t *testing.T) {
	o, ok := File_locksidecar_v1_locksidecar_proto.Options().(*descriptorpb.FileOptions)
	if !ok {
		t.Fatal("the file has no options")
	}
	for language, names := range map[string][2]string{
		"C#":   {o.GetCsharpNamespace(), "Locksidecar.V1"},
		"Java": {o.GetJavaPackage(), "io.github.locksidecar.api.v1"},
		"PHP":  {o.GetPhpNamespace(), `Locksidecar\V1`},
		"Ruby": {o.GetRubyPackage(), "Locksidecar::V1"},
	} {
		if names[0] != names[1] {
			t.Errorf("in %s it is %q, not %q", language, names[0], names[1])
		}
	}
}
