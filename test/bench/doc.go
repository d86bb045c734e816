// Bench measures Patchbay beside what a user has today, and prints the tables.
//
// The first table is the userspace dataplane beside haproxy, nginx stream and
// a plain io.Copy proxy: CPU for a connection, a request, a gigabyte and a UDP
// round trip, memory and descriptors of idle connections, and the latency of a
// request. Client, proxy and server each have a network namespace of their own,
// joined by veth pairs, on the same two processors. Every figure is the median
// of several rounds in which the proxies take turns, so that a machine whose
// speed drifts is unfair to none of them. What counts is the ratio to haproxy in one run.
//
// The second table is the way from the files through the core to a plugin that
// does nothing: loading, the first Apply, and a change of one endpoint, at
// several numbers of services.
//
//	go run ./test/bench                                  all, quick
//	go run ./test/bench -only=newconn -proxies=haproxy,userspace -rounds=3
//	go run ./test/bench -proxies=haproxy,haproxy-splice,datapath -only=bulk -cpuprofile=cpu.out
//	go run ./test/bench -only=core -services=2000
//	BENCH_FULL=1 go run ./test/bench                     more rounds, longer
//
// It needs root, for the namespaces. They have no names and end with the
// process, so nothing can be left behind. A budget that is missed is said in
// the table; it is not an error, because machines differ.
package main
