# frozen_string_literal: true

# 1,000 threads that hold a lock each at the same time. Prints how many the sidecar counts.
require_relative "../ruby/locksidecar"

CROWD = 1000
sidecar = Locksidecar::Client.new
held = Queue.new
counted = Queue.new
threads = Array.new(CROWD) do |i|
  Thread.new do
    sidecar.hold("thread/#{i}") do
      held << i
      counted.pop
    end
  end
end
CROWD.times { held.pop }
puts sidecar.info["holds"]
counted.close
threads.each(&:join)
