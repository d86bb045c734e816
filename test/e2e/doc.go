// Package e2e tests Patchbay as its users have it: the built programs, real
// files, real sockets, real connections on the loopback network. Nothing here
// reaches into a process; what is asserted is what an operator or a client sees.
package e2e
