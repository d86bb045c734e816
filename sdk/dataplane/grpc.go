package dataplane

import "google.golang.org/grpc"

// window is how much of a stream may be under way unread: with gRPC's own
// 64 KiB every message of an Apply would wait for the reader several times.
const window = 1 << 20

// GRPCServerOptions are what a server of the contract uses besides transport
// credentials.
func GRPCServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2 * window),
		grpc.MaxRecvMsgSize(maxMessageSize),
	}
}

// GRPCDialOptions are what a host uses besides transport credentials.
func GRPCDialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(2 * window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4 * maxMessageSize)),
	}
}
