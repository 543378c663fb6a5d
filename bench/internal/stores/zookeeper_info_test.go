package stores

import "testing"

func TestZooKeeperNumber(t *testing.T) {
	const srvr = "Zookeeper version: 3.8.0\nReceived: 42\nZxid: 0x300000010\nMode: standalone\n"
	for _, c := range []struct {
		text, name string
		want       float64
		fails      bool
	}{
		{text: srvr, name: "Received: ", want: 42},
		{text: srvr, name: "Zxid: ", want: 16}, // without the epoch
		{text: "zk_approximate_data_size\t2024\n", name: "zk_approximate_data_size\t", want: 2024},
		{text: srvr, name: "Sent: ", fails: true},
		{text: srvr, name: "Mode: ", fails: true},
	} {
		got, err := zooKeeperNumber(c.text, c.name)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("number(%q) = %v, %v", c.name, got, err)
		}
	}
}
