// Command protoc-gen-locksidecar-openapi is a protoc plugin that writes
// openapi.json. protoc-gen-openapiv3 does the main work; before it, comments
// behind fields become comments above them, which are all that it reads, and
// after it the document gets what is not in the proto file: how errors look, how
// times are written, which answers are streams of lines, and what the calls
// outside /v1 are.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "protoc-gen-locksidecar-openapi:", err)
		os.Exit(1)
	}
}

func run(stdin io.Reader, stdout io.Writer) error {
	in, err := io.ReadAll(stdin)
	if err != nil {
		return err
	}
	var request pluginpb.CodeGeneratorRequest
	if err := proto.Unmarshal(in, &request); err != nil {
		return err
	}
	var api *descriptorpb.FileDescriptorProto
	for _, f := range request.GetProtoFile() {
		if f.GetName() == request.GetFileToGenerate()[0] {
			api = f
		}
		for _, l := range f.GetSourceCodeInfo().GetLocation() {
			if l.LeadingComments == nil {
				l.LeadingComments = l.TrailingComments
			}
		}
	}
	if in, err = proto.Marshal(&request); err != nil {
		return err
	}
	generator := exec.Command("protoc-gen-openapiv3")
	generator.Stdin, generator.Stderr = bytes.NewReader(in), os.Stderr
	out, err := generator.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return err
	}
	if response.Error == nil {
		file := response.GetFile()[0]
		file.Name = proto.String("locksidecar/v1/openapi.json")
		content, err := finish([]byte(file.GetContent()), api)
		if err != nil {
			return err
		}
		file.Content = &content
	}
	if out, err = proto.Marshal(&response); err != nil {
		return err
	}
	_, err = stdout.Write(out)
	return err
}

func finish(content []byte, api *descriptorpb.FileDescriptorProto) (string, error) {
	var d document
	if err := json.Unmarshal(content, &d); err != nil {
		return "", err
	}
	d.finish(api)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.String(), err
}
