package csi

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/localapi/podid"
)

// What the kubelet says of a pod begins with its own prefix (podInfoOnMount of the CSIDriver).
const (
	ofKubelet      = "csi.storage.k8s.io/"
	podName        = ofKubelet + "pod.name"
	podNamespace   = ofKubelet + "pod.namespace"
	podUID         = ofKubelet + "pod.uid"
	serviceAccount = ofKubelet + "serviceAccount.name"
	ephemeral      = ofKubelet + "ephemeral"
)

const (
	// maxRequest bounds a message: what a pod's author writes into a volume is in it.
	maxRequest = 64 << 10
	// maxStreams bounds the requests at a time of one connection.
	maxStreams = 64
)

// server answers the kubelet: as a plugin that registers, and as a CSI driver. What CSI has
// besides is Unimplemented, and the kubelet does not ask for it: the driver names no capability.
func (d *driver) server() *grpc.Server {
	s := grpc.NewServer(grpc.ForceServerCodec(asItIs{}), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams))
	always := func(m message) func(message) (message, error) {
		return func(message) (message, error) { return m, nil }
	}
	for service, calls := range map[string]map[string]func(message) (message, error){
		"pluginregistration.Registration": {
			"GetInfo":                  always(kubeletInfo(d.o.Name)),
			"NotifyRegistrationStatus": d.registered,
		},
		"csi.v1.Identity": {
			"GetPluginInfo":         always(pluginInfo(d.o.Name, d.o.Version)),
			"GetPluginCapabilities": always(message{}),
			"Probe":                 always(ready()),
		},
		"csi.v1.Node": {
			"NodeGetInfo":         always(nodeInfo(d.o.Node)),
			"NodeGetCapabilities": always(message{}),
			"NodePublishVolume":   d.nodePublish,
			"NodeUnpublishVolume": d.nodeUnpublish,
		},
	} {
		desc := &grpc.ServiceDesc{ServiceName: service}
		for name, answer := range calls {
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: handler(answer)})
		}
		s.RegisterService(desc, nil)
	}
	return s
}

func handler(answer func(message) (message, error)) grpc.MethodHandler {
	return func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request message
		if err := decode(&request); err != nil {
			return nil, err
		}
		m, err := answer(request)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
}

// registered hears whether the kubelet has taken the driver. When it has not, it asks again.
func (d *driver) registered(request message) (message, error) {
	ok, problem, err := readStatus(request)
	switch {
	case err != nil:
		return nil, invalid("%v", err)
	case ok:
		d.o.Logger.Info("registered with the kubelet")
	default:
		d.o.Logger.Error("the kubelet does not take the driver", keyError, problem)
	}
	return message{}, nil
}

func (d *driver) nodePublish(request message) (message, error) {
	p, err := readPublish(request)
	if err != nil {
		return nil, invalid("%v", err)
	}
	t, err := d.volumes.target(p.target)
	if err != nil {
		return nil, invalid("%v", err)
	}
	said, err := p.said(t)
	if err != nil {
		return nil, err
	}
	mounted, err := d.volumes.publish(t, said)
	if err != nil {
		d.o.Logger.Error("mount", keyNamespace, said.Namespace, keyPod, said.Name, keyVolume, t.volume, keyError, err)
		return nil, answered(err)
	}
	if mounted {
		d.o.Logger.Info("mounted", keyNamespace, said.Namespace, keyPod, said.Name, keyUID, said.UID, keyVolume, t.volume)
	}
	return message{}, nil
}

// said is what the kubelet says of the pod, if the volume is one that the driver makes.
func (p publishRequest) said(t target) (podid.Said, error) {
	said := podid.Said{
		UID:            p.context[podUID],
		Namespace:      p.context[podNamespace],
		Name:           p.context[podName],
		ServiceAccount: p.context[serviceAccount],
	}
	unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(p.context)), func(k string) bool { return strings.HasPrefix(k, ofKubelet) })
	switch {
	case p.volume == "":
		return said, invalid("the request names no volume")
	case p.context[ephemeral] != "true":
		return said, invalid("the volume must be an inline one of the pod (ephemeral), and the CSIDriver must have podInfoOnMount: true")
	case p.block || p.staged != "":
		return said, invalid("the volume is a folder, no device")
	case !p.readOnly:
		return said, invalid("the volume must have readOnly: true")
	case len(unknown) > 0:
		return said, invalid("the volume has the attribute %q: it must have none", unknown[0])
	// Without podInfoOnMount these are words of the pod's author. Who writes a pod does not know
	// the uid that it will have, and the kubelet names it in the path.
	case said.UID != t.pod:
		return said, invalid("the kubelet says pod %q, and the path is of pod %q", said.UID, t.pod)
	}
	return said, nil
}

func (d *driver) nodeUnpublish(request message) (message, error) {
	volume, path, err := readUnpublish(request)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if volume == "" {
		return nil, invalid("the request names no volume")
	}
	t, err := d.volumes.target(path)
	if err != nil {
		return nil, invalid("%v", err)
	}
	unmounted, err := d.volumes.unpublish(t)
	if err != nil {
		d.o.Logger.Error("unmount", keyUID, t.pod, keyVolume, t.volume, keyError, err)
		return nil, answered(err)
	}
	if unmounted > 0 {
		d.o.Logger.Info("unmounted", keyUID, t.pod, keyVolume, t.volume)
	}
	d.sweep()
	return message{}, nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// answered is an error as CSI names it.
func answered(err error) error {
	if errors.Is(err, podid.ErrInvalid) {
		return invalid("%v", err)
	}
	return status.Error(codes.Internal, err.Error())
}
