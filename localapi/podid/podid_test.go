package podid

import (
	"errors"
	"strings"
	"testing"
)

const (
	uid      = "8f1c0a52-3c1b-4a6e-9d7e-0b1a2c3d4e5f"
	other    = "11111111-2222-4333-8444-555555555555"
	hash     = "d41d8cd98f00b204e9800998ecf8427e"
	systemd  = "8f1c0a52_3c1b_4a6e_9d7e_0b1a2c3d4e5f"
	id       = "4c01db0b339c8a1e1b5a6d7c8e9f00112233445566778899aabbccddeeff0011"
	otherID  = "ffffffff339c8a1e1b5a6d7c8e9f00112233445566778899aabbccddeeff0011"
	slices   = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + systemd + ".slice"
	podScope = slices + "/cri-containerd-" + id + ".scope"
	podNamed = "/kubepods/burstable/pod" + uid + "/" + id
)

func TestPod(t *testing.T) {
	for name, path := range map[string]string{
		"burstable":                                  podNamed,
		"best effort":                                "/kubepods/besteffort/pod" + uid + "/" + id,
		"guaranteed":                                 "/kubepods/pod" + uid + "/" + id,
		"CRI-O without systemd":                      "/kubepods/burstable/pod" + uid + "/crio-" + id,
		"systemd: burstable":                         podScope,
		"systemd: best effort":                       "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + systemd + ".slice/cri-containerd-" + id + ".scope",
		"systemd: guaranteed":                        "/kubepods.slice/kubepods-pod" + systemd + ".slice/cri-containerd-" + id + ".scope",
		"systemd: CRI-O":                             slices + "/crio-" + id + ".scope",
		"systemd: Docker":                            slices + "/docker-" + id + ".scope",
		"below a container":                          podNamed + "/init",
		"below it another pod by name":               podNamed + "/kubepods/burstable/pod" + other + "/" + otherID,
		"below it just another pod":                  podNamed + "/pod" + other + "/" + otherID,
		"below it, with systemd, another pod's name": podScope + "/kubepods.slice/kubepods-pod" + strings.ReplaceAll(other, "-", "_") + ".slice/cri-containerd-" + otherID + ".scope",
	} {
		if got, err := Pod(path); err != nil || got != (Place{Pod: uid, Container: id}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := Pod("/kubepods/burstable/pod" + hash + "/" + id); err != nil || got.Pod != hash {
		t.Errorf("a pod from a file: %+v, %v", got, err)
	}
}

// TestPodOfARealNode: paths that containerd 1.6 and a kubelet of Kubernetes 1.36 made, with the cgroup driver cgroupfs. The
// sandbox of a pod is a container as well.
func TestPodOfARealNode(t *testing.T) {
	for path, want := range map[string]Place{
		"/kubepods/pod08b9e27e-4e86-4cb7-ad64-db046010fbe3/de44c89ca9dbdb8b945cd741222ef68f5f5b600dd43a37682729fd6462bee1e0": {
			"08b9e27e-4e86-4cb7-ad64-db046010fbe3", "de44c89ca9dbdb8b945cd741222ef68f5f5b600dd43a37682729fd6462bee1e0",
		},
		"/kubepods/burstable/pod3916cd26-e291-4c7b-aadf-f0f6d4067ba0/221caca85842a6c041ab24b570a439312647d922d0b2d9101aa8adebe77e3e17": {
			"3916cd26-e291-4c7b-aadf-f0f6d4067ba0", "221caca85842a6c041ab24b570a439312647d922d0b2d9101aa8adebe77e3e17",
		},
		"/kubepods/besteffort/pode5731ea5-4ace-4a73-a582-c6455622e442/a3e456493d1e1846422c7ed59615dd732f9ef9889e851226b222f652dd878b3a": {
			"e5731ea5-4ace-4a73-a582-c6455622e442", "a3e456493d1e1846422c7ed59615dd732f9ef9889e851226b222f652dd878b3a",
		},
		"/kubepods/besteffort/pode5731ea5-4ace-4a73-a582-c6455622e442/5de98bb85447e73f674e77b53bb9196a6004fb8deda0d466818cbc616a61f2fe": {
			"e5731ea5-4ace-4a73-a582-c6455622e442", "5de98bb85447e73f674e77b53bb9196a6004fb8deda0d466818cbc616a61f2fe",
		},
	} {
		if got, err := Pod(path); err != nil || got != want {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
}

// TestNoPod: what is not exactly as the kubelet makes it is nobody's.
func TestNoPod(t *testing.T) {
	for name, path := range map[string]string{
		"empty":                               "",
		"the root":                            "/",
		"relative":                            podNamed[1:],
		"two slashes":                         "/" + podNamed,
		"out of a namespace":                  "/.." + podNamed,
		"a service of the node":               "/system.slice/cron.service",
		"below a service":                     "/system.slice/cron.service" + podNamed,
		"the kubelet's cgroup":                "/kubepods",
		"a class":                             "/kubepods/burstable",
		"a pod":                               "/kubepods/burstable/pod" + uid,
		"a pod and a slash":                   "/kubepods/burstable/pod" + uid + "/",
		"an unknown class":                    "/kubepods/guaranteed/pod" + uid + "/" + id,
		"two classes":                         "/kubepods/burstable/besteffort/pod" + uid + "/" + id,
		"no pod":                              "/kubepods/burstable/" + uid + "/" + id,
		"capital letters":                     "/kubepods/burstable/pod" + strings.ToUpper(uid) + "/" + id,
		"a short uid":                         "/kubepods/burstable/pod" + uid[:35] + "/" + id,
		"a long uid":                          "/kubepods/burstable/pod" + uid + "0/" + id,
		"a uid of another driver":             "/kubepods/burstable/pod" + systemd + "/" + id,
		"a line more":                         "/kubepods/burstable/pod" + uid + "\n/" + id,
		"no container":                        "/kubepods/burstable/pod" + uid + "/init",
		"a short id":                          "/kubepods/burstable/pod" + uid + "/" + id[1:],
		"CRI-O's monitor":                     "/kubepods/burstable/pod" + uid + "/crio-conmon-" + id,
		"systemd: the pod of another class":   "/kubepods.slice/kubepods-besteffort.slice/kubepods-burstable-pod" + systemd + ".slice/cri-containerd-" + id + ".scope",
		"systemd: no class in the pod":        "/kubepods.slice/kubepods-burstable.slice/kubepods-pod" + systemd + ".slice/cri-containerd-" + id + ".scope",
		"systemd: a class in the pod":         "/kubepods.slice/kubepods-burstable-pod" + systemd + ".slice/cri-containerd-" + id + ".scope",
		"systemd: dashes":                     "/kubepods.slice/kubepods-pod" + uid + ".slice/cri-containerd-" + id + ".scope",
		"systemd: no slice":                   "/kubepods.slice/kubepods-pod" + systemd + "/cri-containerd-" + id + ".scope",
		"systemd: no scope":                   slices + "/cri-containerd-" + id,
		"systemd: an unknown runtime":         slices + "/lxc-" + id + ".scope",
		"systemd: an id alone":                slices + "/" + id + ".scope",
		"systemd: CRI-O's monitor":            slices + "/crio-conmon-" + id + ".scope",
		"the other driver's pod":              "/kubepods/kubepods-burstable.slice/kubepods-burstable-pod" + systemd + ".slice/cri-containerd-" + id + ".scope",
		"systemd, and the other driver's pod": "/kubepods.slice/burstable/pod" + uid + "/" + id,
	} {
		if got, err := Pod(path); !errors.Is(err, ErrUnknown) || got != (Place{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestUnit(t *testing.T) {
	for path, want := range map[string]string{
		"/system.slice/cron.service":                          "cron.service",
		"/system.slice/cron.service/payload":                  "cron.service",
		"/system.slice/cron.service/system.slice/ssh.service": "cron.service",
		"/system.slice/system-getty.slice/getty@tty1.service": "getty@tty1.service",
		"/a.slice/a-b.slice/a-b-c.slice/x.service":            "x.service",
		"/init.scope": "init.scope",
		"/machine.slice/machine-web.scope/init.scope":                          "machine-web.scope",
		"/system.slice/docker-" + id + ".scope":                                "docker-" + id + ".scope",
		"/system.slice/_cpu.service":                                           "cpu.service",
		`/system.slice/a\x2db.service`:                                         `a\x2db.service`,
		"/system.slice/ssh.socket":                                             "ssh.socket",
		"/user.slice/user-1000.slice/session-3.scope":                          "user-1000.slice",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/cron.service": "user-1000.slice",
		"/user.slice/user-1000.slice":                                          "user-1000.slice",
		"/user.slice/cron":                                                     "",
		"/user-1000.slice/x.service":                                           "",
		"/user.slice/cron.service":                                             "cron.service",
		"/a.slice/user.slice/user-1000.slice/x.service":                        "",
		"":                                     "",
		"/":                                    "",
		"/system.slice":                        "",
		"/system.slice/":                       "",
		"system.slice/cron.service":            "",
		"/../system.slice/cron.service":        "",
		"/cron":                                "",
		"/docker/" + id:                        "",
		podNamed:                               "",
		"/system.slice/foo/cron.service":       "",
		"/a-b.slice/x.service":                 "",
		"/a.slice/b-c.slice/x.service":         "",
		"/-.slice/x.service":                   "",
		"/a.slice/a-.slice/x.service":          "",
		"/.slice/x.service":                    "",
		"/system.slice/.service":               "",
		"/system.slice/cron.service (deleted)": "",
		"/system.slice/cron.service\n/x":       "",
		"/system.slice/" + strings.Repeat("a", 248) + ".service": "",
		"/system.slice/" + strings.Repeat("a", 247) + ".service": strings.Repeat("a", 247) + ".service",
	} {
		got, err := Unit(path)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
		if got != "" && !ValidUnit(got) {
			t.Errorf("%s is no valid unit", got)
		}
	}
	for _, name := range []string{"", "cron", "system.slice", "user-x.slice", "a b.service", "a/b.service", strings.Repeat("a", 248) + ".service"} {
		if ValidUnit(name) {
			t.Errorf("%q is a valid unit", name)
		}
	}
}

// FuzzPod: who has a container can only ever be taken for itself, whatever it makes below its own cgroup.
func FuzzPod(f *testing.F) {
	for _, below := range []string{"", "x", "/", "../pod" + other + "/" + otherID, podNamed, podScope} {
		f.Add(below)
	}
	f.Fuzz(func(t *testing.T, below string) {
		for _, own := range []string{podNamed, podScope} {
			if got, err := Pod(own + "/" + below); err != nil || got != (Place{Pod: uid, Container: id}) {
				t.Errorf("%q: %+v, %v", below, got, err)
			}
		}
		if got, err := Unit("/system.slice/cron.service/" + below); err != nil || got != "cron.service" {
			t.Errorf("%q: %s, %v", below, got, err)
		}
	})
}
