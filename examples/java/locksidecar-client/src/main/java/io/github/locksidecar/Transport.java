package io.github.locksidecar;

import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.MultiThreadIoEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.nio.NioIoHandler;
import io.grpc.netty.shaded.io.netty.channel.socket.nio.NioDomainSocketChannel;
import io.grpc.protobuf.ProtoUtils;
import java.net.UnixDomainSocketAddress;
import java.nio.file.Path;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import locksidecar.v1.Locksidecar.SessionRequest;
import locksidecar.v1.Locksidecar.SessionResponse;

/**
 * gRPC over the JDK's own Unix sockets. One thread does all input and output; nothing that may
 * block, and no code of the app, runs on it.
 */
final class Transport implements AutoCloseable {
  /** The one method that is used: not worth a second code generator. */
  static final MethodDescriptor<SessionRequest, SessionResponse> SESSION =
      MethodDescriptor.<SessionRequest, SessionResponse>newBuilder()
          .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
          .setFullMethodName("locksidecar.v1.LockSidecar/Session")
          .setRequestMarshaller(ProtoUtils.marshaller(SessionRequest.getDefaultInstance()))
          .setResponseMarshaller(ProtoUtils.marshaller(SessionResponse.getDefaultInstance()))
          .build();

  /** Fixed, so that gRPC does not measure a network where there is none. */
  private static final int WINDOW = 1 << 20;

  private final Path socket;
  private final EventLoopGroup loop;

  Transport(Path socket, ThreadFactory threads) {
    this.socket = socket;
    this.loop = new MultiThreadIoEventLoopGroup(1, threads, NioIoHandler.newFactory());
  }

  /** A connection of its own for each session, so that none inherits another's failures. */
  ManagedChannel open() {
    return NettyChannelBuilder.forAddress(UnixDomainSocketAddress.of(socket))
        .channelType(NioDomainSocketChannel.class, UnixDomainSocketAddress.class)
        .eventLoopGroup(loop)
        .withOption(ChannelOption.SO_KEEPALIVE, null) // TCP's; Netty would log that it is not known
        .directExecutor()
        .usePlaintext() // the file's mode and SO_PEERCRED guard a Unix socket
        .overrideAuthority("localhost")
        .flowControlWindow(WINDOW)
        .disableRetry() // a retry would need a copy of every message
        .disableServiceConfigLookUp()
        .build();
  }

  @Override
  public void close() {
    loop.shutdownGracefully(0, 1, TimeUnit.SECONDS);
  }
}
