# frozen_string_literal: true

# Runs examples/contract/*.json; its README.md says what the fields mean.

require_relative "sidecars"

# One run of one case. Each step is the method of its name.
class Run
  Interrupted = Class.new(StandardError) # how Ruby ends what a thread does

  def initialize
    @sidecars = {}
    @clients = {}
    @holds = {}
    @calls = {}
    @handles = {}
    @watches = {} # queues of what they say
    @noted = {} # moments, for order
  end

  def all(spec, store)
    namespace = SecureRandom.hex(8)
    spec["sidecars"].each { |name, flags| @sidecars[name] = Sidecar.new({ "name" => name, "namespace" => namespace, **flags }, store) }
    spec["clients"].each { |name, sidecar| @clients[name] = connect(spec, name, sidecar) }
    steps(spec["steps"])
  ensure
    @calls.each_value(&:kill)
  end

  private

  def connect(spec, name, sidecar)
    Locksidecar::Client.new(socket: @sidecars[sidecar].socket, name: name, metadata: spec.dig("metadata", name) || {}).open
  end

  def steps(all)
    all.each.with_index(1) do |step, i|
      method("step_#{step["do"]}").call(step)
    rescue StandardError => e
      raise Failed, "step #{i} #{JSON.generate(step)}: #{e.full_message(highlight: false)}"
    end
  end

  def note(what)
    @noted[what] ||= Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # Does it; nil where it failed as it must.
  def refused(step, &block)
    return yield unless step["error"]

    e = fails(step["error"], &block)
    (step["metadata"] || []).each { |key| must(!e.metadata[key].to_s.empty?, "no #{key} in #{e.metadata}") }
    nil
  end

  def granted(step, &block)
    lock = refused(step, &block) or return
    same(step["count"], lock.count, "count") if step["count"]
    return unless (name = step["hold"])

    @holds[name] = lock
    lock.on_lost { note("lost:#{name}") } unless step["unwatched"]
  end

  def step_acquire(step)
    options = { shared: step["mode"] == "SHARED", owner: step["owner"], reentrant: step["reentrant"] || false,
                wait: step["wait"] && (step["wait"] / 1e3), max_hold: step["maxHold"] && (step["maxHold"] / 1e3),
                min_hold: step["minHold"] && (step["minHold"] / 1e3), limit: step["limit"], detachable: step["detachable"] }
    if (once = step["once"])
      options[:once] = { keep: once["keep"] && "#{once["keep"] / 1e3}s", maxAttempts: once["maxAttempts"] }.compact
    end
    what = step["resources"] || step["resource"]
    client = @clients[step["client"]]
    return granted(step) { client.acquire(what, **options) } unless (name = step["call"])

    @calls[name] = Thread.new do
      client.acquire(what, **options)
    rescue Interrupted
      raise Locksidecar::Cancelled, "interrupted"
    ensure
      note("got:#{name}")
    end
  end

  def step_pending(step)
    must(@calls[step["call"]].join(step["time"] / 1e3).nil?, "it was answered")
  end

  def step_cancel(step)
    @calls[step["call"]].raise(Interrupted)
  end

  def step_answer(step)
    call = @calls[step["call"]]
    granted(step) do
      must(call.join(step["within"] / 1e3), "no answer in time")
      call.value
    end
  end

  def step_release(step)
    lock = @holds[step["hold"]]
    return refused(step) { lock.public_send(step["outcome"].downcase, step["note"] || "") } if step["outcome"]

    left = refused(step) { lock.release }
    same(step["count"], left, "count") if step["count"]
  end

  def step_downgrade(step)
    refused(step) { @holds[step["hold"]].downgrade }
  end

  # The end of hold.
  def step_dispose(step)
    lock = @holds[step["hold"]]
    refused(step) { lock.release unless lock.released? }
  end

  def step_drop(step)
    @holds.delete(step["hold"])
    GC.start
  end

  def step_extend(step)
    refused(step) { @holds[step["hold"]].extend_to(step["maxHold"] / 1e3) }
  end

  def step_detach(step)
    lock = @holds[step["hold"]]
    detached = refused(step) { lock.detach(step["ttl"] / 1e3) } or return
    detached_as(lock, detached, step["ttl"])
    @handles[step["handle"]] = detached
  end

  def detached_as(want, detached, ttl)
    same([want.resource, want.mode, want.fence], [detached.resource, detached.mode, detached.fence], "detached")
    must(detached.valid_for.positive? && detached.valid_for <= ttl / 1e3, "valid for #{detached.valid_for}")
  end

  def step_attach(step)
    granted(step) { @clients[step["client"]].attach(@handles[step["handle"]]) }
  end

  def step_extendHandle(step)
    before = @handles[step["handle"]]
    after = refused(step) { @clients[step["client"]].extend_detached(before, step["ttl"] / 1e3) } or return
    same(before.handle, after.handle, "handle")
    detached_as(before, after, step["ttl"])
  end

  def step_releaseHandle(step)
    refused(step) { @clients[step["client"]].release_detached(@handles[step["handle"]]) }
  end

  def step_same(step)
    same(1, step["holds"].map { |h| @holds[h].fence }.uniq.size, "fences")
  end

  def step_check(step)
    lock = @holds[step["hold"]]
    return refused(step) { lock.check } unless step["within"]

    eventually("the check says so", step["within"] / 1e3) do
      refused(step) { lock.check }
      true
    rescue Failed
      false
    end
  end

  def step_slots(step)
    same(step["are"], step["holds"].map { |h| @holds[h].slot }.sort, "slots")
  end

  def step_look(step)
    lock = @holds[step["hold"]]
    is = { "parts" => lock.parts.map { |part| part["resource"] }, "slot" => lock.slot, "attempt" => lock.attempt || 0,
           "previous" => lock.previous&.slice("state", "attempt", "note") }
    is.each { |field, value| same(step[field], value, field) if step.key?(field) }
    same(step["lost"], lock.lost?, "lost") if step.key?("lost")
    if step["validFor"]
      left = 1e3 * lock.valid_for
      must(left.between?(*step["validFor"]), "valid for #{left} ms")
    end
    same(step["mode"], lock.mode, "mode") if step["mode"]
    must(lock.guard && !lock.guard["sql"].empty? && !lock.guard["args"].empty?, "there is no guard") if step["guard"]
  end

  def step_lost(step)
    lock = @holds[step["hold"]]
    eventually("it is told", step["within"] / 1e3) { @noted["lost:#{step["hold"]}"] } # though nobody asks
    same(step["reason"], lock.wait_lost(0).lost_reason, "reason")
    same(0.0, lock.valid_for, "valid_for")
  end

  def step_rising(step)
    fences = step["holds"].map { |h| @holds[h].fence }
    same(fences.uniq.sort, fences, "fences")
  end

  def step_order(step)
    must(@noted[step["first"]] < @noted[step["then"]], @noted.to_s)
  end

  def step_close(step) = @clients[step["client"]].close
  def step_open(step) = refused(step) { @clients[step["client"]].open }
  def step_freeze(step) = @sidecars[step["sidecar"]].freeze!
  def step_thaw(step) = @sidecars[step["sidecar"]].thaw
  def step_kill(step) = @sidecars[step["sidecar"]].kill
  def step_start(step) = @sidecars[step["sidecar"]].start
  def step_terminate(step) = @sidecars[step["sidecar"]].terminate
  def step_draining(step) = eventually("it drains", step["within"] / 1e3) { @clients[step["client"]].draining? }
  def step_ended(step) = eventually("it ends", step["within"] / 1e3) { @sidecars[step["sidecar"]].ended? }

  # All of this process stands still.
  def step_stop(step)
    stops = spawn("sleep 0.2; kill -STOP #{Process.pid}; sleep #{step["time"] / 1e3}; kill -CONT #{Process.pid}")
    hold = @holds[step["hold"]]
    hold.check until hold.nil? || Process.wait(stops, Process::WNOHANG)
    Process.wait(stops) unless hold
  end

  def step_fork(step)
    reader, writer = IO.pipe
    pid = fork do
      steps(step["steps"])
      writer.write("good")
    rescue Exception => e
      writer.write(e.full_message(highlight: false))
    ensure
      writer.close
      exit! # without any clean-up
    end
    writer.close
    same("good", reader.read, "the child")
    Process.waitpid(pid)
  end

  def step_leader(step)
    eventually("the leader", (step["within"] || 0) / 1e3) { leads?(step, @clients[step["client"]].leader(step["resource"])) }
  end

  def leads?(step, leader)
    holder = leader["holder"]
    [leader["leads"], !holder.nil?].all?(!step["value"].nil?) && leader["value"] == step["value"].to_s &&
      (!step["hold"] || holder["fence"].to_i == @holds[step["hold"]].fence) &&
      leader["candidates"] == step.fetch("candidates", leader["candidates"])
  end

  def step_watchLeader(step)
    said = @watches[step["watch"]] = Queue.new
    leaders = @clients[step["client"]].watch_leader(step["resource"], interval: step["interval"] / 1e3)
    Thread.new do
      leaders.each { |leader| said << leader }
    rescue Locksidecar::Error
      nil # it ends with its sidecar
    end
  end

  def step_told(step)
    said = @watches[step["watch"]]
    eventually("it is told", step["within"] / 1e3) { !said.empty? && leads?(step, said.pop) }
  end

  def step_pause(step) = sleep(step["time"] / 1e3)

  def step_force(step)
    sidecar = @sidecars[step["sidecar"]]
    Thread.new { sidecar.http("DELETE", "#{Sidecar.path(step["resource"])}?grace=#{step["grace"] / 1e3}s") }
  end

  def step_queue(step)
    lock = nil
    eventually("the queue", step["within"] / 1e3) do
      lock = @sidecars[step["sidecar"]].lock(step["resource"])
      lock["holders"].size == step["holders"] && lock["waiters"].size == step["waiters"]
    end
    owners = lock["holders"].map { |h| h["owner"] }
    must((step["owners"] || []).zip(owners).all? { |want, got| want == "*" ? !got.empty? : want == got }, "the owners are #{owners}")
  end
end

tests = Dir[File.expand_path("../../contract/*.json", __dir__)].sort.flat_map do |file|
  spec = JSON.parse(File.read(file))
  stores = case spec["store"] || "any"
           when "any" then STORES.merge("embedded" => "embedded:").first(1)
           when "shared" then STORES.to_a
           when "mysql" then STORES.slice("mysql").to_a
           end
  if (spec["needs"] || []).difference(%w[fork stop detach queue sessions unread]).any?
    [[File.basename(file), -> { raise Skipped, "this runner has no #{spec["needs"].join(" and no ")}" }]]
  elsif stores.empty?
    [[File.basename(file), -> { raise Skipped, "needs a store (#{spec["store"]}) that the environment does not name" }]]
  else
    stores.map { |name, url| ["#{File.basename(file)} on #{name}", -> { Run.new.all(spec, url) }] }
  end
end
tap_all(tests)
