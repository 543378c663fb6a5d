// Package charttest has the tests of the Helm charts in deploy/helm. They need
// no cluster and no helm: Helm, helm-unittest, the API server's own evaluation of
// admission policies, and Prometheus' parser are libraries here.
package charttest
