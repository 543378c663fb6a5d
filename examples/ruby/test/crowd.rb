# frozen_string_literal: true

# More acquires at a time than the sidecar takes of one session.

require_relative "sidecars"

include Locksidecar

# A sidecar that takes so many waiters, a client, and the lock that all wait for.
def crowded(most)
  sidecar = Sidecar.new("ttl" => "60s", "max-waiters" => most.to_s)
  client = Client.new(socket: sidecar.socket)
  [sidecar, client, client.acquire("a")]
end

def waiters(client, n)
  eventually("they wait") { client.info["waiters"].to_i == n }
end

def queued(client, n)
  session = client.instance_variable_get(:@session)
  eventually("they queue") { session.instance_variable_get(:@acquires).queue.size == n }
end

# Threads that share the lock.
def sharers(client, n, **options)
  Array.new(n) { Thread.new { client.hold("a", shared: true, **options) { 1 } } }
end

def refusal
  yield
  nil
rescue Error => e
  e.reason
end

# What asks for resources, without a sidecar.
class Asking
  attr_reader :acquires

  def initialize
    @acquires = Acquires.new
  end

  def ask(resource, wait = nil)
    call = Call.new("acquire", { resource: resource }, wait: wait)
    [call, @acquires.enter(call)]
  end

  def goes
    all = []
    while (call = @acquires.next)
      all << call
    end
    all
  end
end

tap_all({
  "what nobody asks for gets through before those who came earlier" => lambda {
    asking = Asking.new
    busy = Array.new(799) { asking.ask("busy") }
    others = Array.new(201) { |i| asking.ask("r#{i}") }
    must((busy + others).all?(&:last), "all are sent at once")
    waits = %w[busy r0 free r1].map { |resource| asking.ask(resource) }
    must(waits.none?(&:last), "there is no room")
    asking.acquires.answered(busy[0].first)
    must(asking.goes == [waits[2].first], "nobody asks for it")
    asking.acquires.answered(busy[1].first)
    must(asking.goes.empty?, "all are asked for")
    must(asking.ask("late").last, "nobody asks for it")
    last = asking.ask("last").first # there is no room at all
    asking.acquires.answered(busy[2].first)
    must(asking.goes == [last], "there is room again")
    asking.acquires.answered(others[1].first)
    must(asking.goes == [waits[3].first], "it is not asked for any more")
  },

  "who is refused keeps its place, and tries go first" => lambda {
    asking = Asking.new
    a, b, c = %w[a b c].map { |resource| asking.ask(resource).first }
    asking.acquires.refused(b, 9)
    later, sent = asking.ask("b")
    must(!sent, "it does not overtake the one that was refused")
    asking.acquires.refused(c, 9)
    must(asking.goes.empty?, "none was answered")
    tries = Array.new(2) { asking.ask("try", 0).first }
    gone = asking.ask("gone").first
    must(asking.acquires.drop(gone) && !asking.acquires.drop(gone), "it is dropped once")
    asking.acquires.answered(a)
    must(asking.goes == [*tries, b, c, later], "in their order")
    same(9, asking.acquires.most)
  },

  "more threads than the sidecar takes" => lambda {
    _, client, held = crowded(3)
    threads = sharers(client, 20) + sharers(client, 10, wait: 3600)
    waiters(client, 3)
    queued(client, 27)
    held.release
    same(30, threads.sum { |thread| thread.join(PATIENCE)&.value.to_i })
  },

  "who queues in the client gives up, and leaves nothing" => lambda {
    sidecar, client, held = crowded(2)
    threads = sharers(client, 2)
    waiters(client, 2)
    killed = sharers(client, 1).first
    queued(client, 1)
    killed.kill.join
    queued(client, 0)
    over = fails("WAIT_TIMEOUT") { client.acquire("a", wait: 0.1) }
    same("a", over.metadata["resource"])
    same("2", fails("LIMIT_EXCEEDED") { client.acquire("b", wait: 0) }.metadata["max"])
    held.release
    same(2, threads.sum { |thread| thread.join(PATIENCE)&.value.to_i })
    eventually("nothing is left") { sidecar.lock("a").values_at("holders", "waiters").all?(&:empty?) }
  },

  "answers that a crowd finds unread, after it has stood still, are answers" => lambda {
    _, client, held = crowded(1000)
    threads = Array.new(500) { Thread.new { refusal { client.acquire("a", wait: 8) } } } # until all of them have asked, also on a busy machine
    waiters(client, 500)
    Process.spawn("kill -STOP #{Process.pid}; sleep 15; kill -CONT #{Process.pid}")
    reasons = threads.map { |thread| thread.join(PATIENCE)&.value }.uniq
    must(reasons.include?("WAIT_TIMEOUT") && !reasons.include?("SIDECAR_SILENT"), reasons.join(", "))
    held.release
  },

  "who queues in the client goes to the next connection, within its own wait" => lambda {
    sidecar, client, = crowded(1)
    gone = sharers(client, 1).first
    waiters(client, 1)
    threads = sharers(client, 2) + sharers(client, 1, wait: 3600)
    queued(client, 3)
    over = Thread.new { client.acquire("b", wait: 5) }
    queued(client, 4)
    keeper = Client.new(socket: sidecar.socket)
    keeper.acquire("b")
    client.instance_variable_get(:@session).send(:hang_up, Socket::SHUT_RDWR)
    fails("SIDECAR_GONE") { gone.value }
    same(3, threads.sum { |thread| thread.join(PATIENCE)&.value.to_i }) # what was held went with the connection
    fails("WAIT_TIMEOUT") { over.value }
    eventually("nothing is left") { sidecar.lock("b")["waiters"].empty? && sidecar.lock("a")["holders"].empty? }
  },

  "the end of the session ends who queues in the client" => lambda {
    _, client, = crowded(1)
    threads = sharers(client, 3)
    queued(client, 2)
    client.close
    threads.each { |thread| fails("SESSION_CLOSED") { thread.value } }
  }
})
