// Package csi is the driver of a node's volumes: it brings the folder with the node's socket into
// pods, and writes down whose pod that is.
//
// The kubelet asks it, by the Container Storage Interface, to publish and to unpublish a volume of
// a pod. A volume is a bind mount of one folder of the node, and belongs to one pod (it is
// ephemeral and inline). The driver
//
//   - writes the file of the pod (podid.Folder) before it mounts, and removes it after the pod's
//     last volume is unmounted;
//   - mounts what is not mounted yet. A kubelet that starts again asks again for each volume;
//   - keeps nothing in memory. What is mounted says the kernel, what was said of pods says the
//     folder, and the kubelet asks until it has an answer. So the driver can be killed between any
//     two of its steps;
//   - registers with the kubelet itself: it answers as the kubelet's plugin at the same socket.
//
// It talks to no store and to no app, and needs no API server. It must be root of the node, and
// its mounts must be seen there.
package csi
