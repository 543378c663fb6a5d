package stores

import "testing"

func TestEtcdSum(t *testing.T) {
	const metrics = "# TYPE grpc_server_msg_received_total counter\n" +
		"grpc_server_msg_received_total{grpc_method=\"Put\",grpc_type=\"unary\"} 3\n" +
		"grpc_server_msg_received_total{grpc_method=\"Txn\",grpc_type=\"unary\"} 1.2e+06\n" +
		"etcd_server_proposals_applied_total 42\n" +
		"etcd_server_proposals_pending x\n"
	for _, c := range []struct {
		begins string
		want   float64
		fails  bool
	}{
		{begins: "grpc_server_msg_received_total{", want: 1200003},
		{begins: "etcd_server_proposals_applied_total ", want: 42},
		{begins: "etcd_server_proposals_pending ", fails: true},
		{begins: "etcd_server_leader_changes", fails: true},
	} {
		got, err := etcdSum(metrics, c.begins)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("etcdSum(%q) = %v, %v", c.begins, got, err)
		}
	}
}
