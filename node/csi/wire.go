package csi

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/locksidecar/locksidecar/internal/protofields"
)

// This file reads and writes the few messages that are used here, of csi.proto (csi.v1) and of the
// kubelet's pluginregistration. The types that are generated of csi.proto describe all of CSI to
// each program that imports them, when it starts. The tests compare both.

// message is one that is being written.
type message []byte

func (m *message) text(field protowire.Number, s string) {
	*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), s)
}

// asItIs is a codec for messages that are written and read here.
type asItIs struct{}

// Name implements encoding.Codec: it is what Protocol Buffers are called.
func (asItIs) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (asItIs) Marshal(v any) ([]byte, error) {
	m, ok := v.(message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return m, nil
}

// Unmarshal implements encoding.Codec.
func (asItIs) Unmarshal(data []byte, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	*m = data
	return nil
}

// publishRequest is a NodePublishVolumeRequest.
type publishRequest struct {
	volume   string
	staged   string // the path where it is staged
	target   string
	block    bool
	readOnly bool
	context  map[string]string // what the pod's volume says, and what the kubelet says of the pod
}

func readPublish(m message) (p publishRequest, err error) {
	const volumeID, stagingTargetPath, targetPath, volumeCapability, readonly, volumeContext = 1, 3, 4, 5, 6, 8
	const block = 1
	p.context = map[string]string{}
	err = protofields.Each(m, func(f protofields.Field) error {
		switch f.Number {
		case volumeID:
			p.volume = string(f.Bytes)
		case stagingTargetPath:
			p.staged = string(f.Bytes)
		case targetPath:
			p.target = string(f.Bytes)
		case volumeCapability:
			return protofields.Each(f.Bytes, func(f protofields.Field) error {
				p.block = p.block || f.Number == block
				return nil
			})
		case readonly:
			p.readOnly = f.N != 0
		case volumeContext:
			return readEntry(f.Bytes, p.context)
		}
		return nil
	})
	return p, err
}

// readEntry reads one entry of a map.
func readEntry(m message, into map[string]string) error {
	const key, value = 1, 2
	var k, v string
	err := protofields.Each(m, func(f protofields.Field) error {
		switch f.Number {
		case key:
			k = string(f.Bytes)
		case value:
			v = string(f.Bytes)
		}
		return nil
	})
	into[k] = v
	return err
}

// readUnpublish reads a NodeUnpublishVolumeRequest.
func readUnpublish(m message) (volume, target string, err error) {
	const volumeID, targetPath = 1, 2
	err = protofields.Each(m, func(f protofields.Field) error {
		switch f.Number {
		case volumeID:
			volume = string(f.Bytes)
		case targetPath:
			target = string(f.Bytes)
		}
		return nil
	})
	return volume, target, err
}

// readStatus reads a RegistrationStatus of the kubelet.
func readStatus(m message) (registered bool, problem string, err error) {
	const pluginRegistered, theError = 1, 2
	err = protofields.Each(m, func(f protofields.Field) error {
		switch f.Number {
		case pluginRegistered:
			registered = f.N != 0
		case theError:
			problem = string(f.Bytes)
		}
		return nil
	})
	return registered, problem, err
}

// kubeletInfo is a PluginInfo. Without an endpoint, the kubelet asks for volumes where it has
// asked for this.
func kubeletInfo(name string) (m message) {
	const kind, theName, supportedVersions = 1, 2, 4
	m.text(kind, "CSIPlugin")
	m.text(theName, name)
	m.text(supportedVersions, "1.0.0") // of CSI
	return m
}

// pluginInfo is a GetPluginInfoResponse.
func pluginInfo(name, version string) (m message) {
	const theName, vendorVersion = 1, 2
	m.text(theName, name)
	m.text(vendorVersion, version)
	return m
}

// ready is a ProbeResponse.
func ready() (m message) {
	const isReady, value = 1, 1
	yes := protowire.AppendVarint(protowire.AppendTag(nil, value, protowire.VarintType), 1)
	return protowire.AppendBytes(protowire.AppendTag(m, isReady, protowire.BytesType), yes)
}

// nodeInfo is a NodeGetInfoResponse.
func nodeInfo(node string) (m message) {
	const nodeID = 1
	m.text(nodeID, node)
	return m
}
